"""The OpenAI API over the engine. `radixkv[server]` brings what it needs."""
