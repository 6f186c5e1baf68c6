"""What runs in the pods that the operator makes: `python -m exegpt_cli.pods.gateway`, `.profiler` and `.fetch`."""
