"""Load tests over HTTP alone: the generator knows nothing of the server but its OpenAI API."""
