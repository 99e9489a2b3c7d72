"""The `vllm` engine and its servers."""
