# Three images from one source: `docker build --target operator|runner|gateway .`
# Each holds only what its processes import; the operator and the gateway have no torch.
FROM python:3.11-slim-bookworm AS base
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --uid 65532 --no-create-home --home-dir /tmp nonroot
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY planner planner
COPY runner runner
COPY cli cli
COPY operator operator

FROM base AS operator
RUN python -m pip install -c constraints.txt ".[operator]" && rm -rf /src
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["python", "-m", "exegpt_operator.main"]

FROM base AS gateway
RUN python -m pip install -c constraints.txt ".[gateway]" && rm -rf /src
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["python", "-m", "exegpt_cli.pods.gateway"]

FROM base AS runner
RUN python -m pip install -c constraints.txt ".[runner,gateway]" psutil && rm -rf /src
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["python", "-m", "exegpt_runner.worker"]
