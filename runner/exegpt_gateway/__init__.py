"""The front door and the conductor: OpenAI routes, queue, policies over steps. No torch."""
