"""Models by what their K and V cost: bytes a token and FLOPs a prefill."""
