"""`python -m radixkv.cli`: the same as the `radixkv` script."""

from radixkv.cli import main

if __name__ == "__main__":
    main()
