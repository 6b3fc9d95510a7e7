"""The folder that a virtual process has in PYTHONPATH, for its `sitecustomize`."""
