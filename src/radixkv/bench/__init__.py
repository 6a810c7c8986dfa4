"""The engine measured on the workloads that prefix caching is for, beside the best possible and beside llama.cpp."""
