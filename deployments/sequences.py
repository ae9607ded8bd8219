"""vLLM's table of requests, made to keep and to tell what it would not."""

from __future__ import annotations

from typing import Any

from deployments.answer_usage import note_sequence


def follow_sequences(output_processor: Any) -> None:
    """From now on each sequence keeps its cache salt, which vLLM would drop, and is noted for the answer it is for."""
    add_request = output_processor.add_request

    def add_and_follow(request: Any, *args: Any, **kwargs: Any) -> None:
        add_request(request, *args, **kwargs)
        sequence = output_processor.request_states[request.request_id]
        sequence.cache_salt = request.cache_salt
        note_sequence(sequence)

    output_processor.add_request = add_and_follow
