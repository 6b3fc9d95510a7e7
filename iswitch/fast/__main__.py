"""Compile all kernels that are not compiled yet: `python -m iswitch.fast`."""

from . import loading

if __name__ == "__main__":
    loading.load_all()
