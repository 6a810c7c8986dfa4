"""Benchmarks of radixkv against the prefix caches of SGLang and Dynamo; README.md says how to run and read them."""
