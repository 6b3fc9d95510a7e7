# An image with `iswitch demo`; docs/cookbook.md. docker build -t iswitch . && docker run --rm iswitch
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY iswitch iswitch
COPY worker_lib worker_lib
COPY topologies topologies
COPY p4 p4
RUN pip install --no-cache-dir ".[demo,netns]"
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["iswitch"]
CMD ["demo"]
