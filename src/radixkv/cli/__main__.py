"""`python -m radixkv.cli`: the same as the `radixkv` script."""

from radixkv.cli import main

main()
