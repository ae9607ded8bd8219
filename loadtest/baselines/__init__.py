"""What KVPulse is compared with, ready to start: Ray Serve LLM, and vLLM alone."""
