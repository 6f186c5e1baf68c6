# Three images from one source: `docker build --target operator|gateway|runner .` Each holds the libraries of its own
# extra in pyproject.toml, pinned by constraints.txt; the operator and the gateway hold neither torch nor the engine.
#
# The runner's torch is PyPI's, with CUDA: 5 GB. For nodes without GPUs, PyTorch's own index has builds without:
# `--build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`. Nothing needs a compiler at run time: kernels
# for CPUs are compiled in memory by numba, which brings LLVM.

ARG VERSION=0.1.0

FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN useradd --no-log-init --no-create-home --home-dir /tmp --uid 65532 nonroot
WORKDIR /tmp
LABEL org.opencontainers.image.licenses="Apache-2.0"

# What each extra requires, apart from all else in pyproject.toml: libraries stay a cached layer while code changes.
FROM base AS libraries
WORKDIR /libraries
COPY constraints.txt pyproject.toml ./
RUN python -c "import tomllib; from pathlib import Path; \
    project = tomllib.loads(Path('pyproject.toml').read_text())['project']; \
    [Path(f'{extra}.txt').write_text('\n'.join(project['dependencies'] + libraries)) \
    for extra, libraries in project['optional-dependencies'].items()]" && rm pyproject.toml

# Two wheels: of all there is, and before that of all but the engine.
FROM base AS wheels
WORKDIR /source
COPY constraints.txt ./
RUN python -m pip install -c constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY cli cli
COPY operator operator
COPY runner/exegpt_wire runner/exegpt_wire
COPY runner/exegpt_gateway runner/exegpt_gateway
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels/light .
COPY runner/exegpt_runner runner/exegpt_runner
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels/whole .

FROM base AS operator
RUN --mount=type=bind,from=libraries,source=/libraries,target=/libraries \
    python -m pip install -c /libraries/constraints.txt -r /libraries/operator.txt
RUN --mount=type=bind,from=wheels,source=/wheels/light,target=/wheels \
    python -m pip install --no-deps /wheels/*.whl && python -m pip check
ARG VERSION
LABEL org.opencontainers.image.title="exegpt operator" org.opencontainers.image.version="${VERSION}"
USER 65532:65532
ENTRYPOINT ["python", "-m", "exegpt_operator.main"]

FROM base AS gateway
RUN --mount=type=bind,from=libraries,source=/libraries,target=/libraries \
    python -m pip install -c /libraries/constraints.txt -r /libraries/gateway.txt
RUN --mount=type=bind,from=wheels,source=/wheels/light,target=/wheels \
    python -m pip install --no-deps /wheels/*.whl && python -m pip check
ARG VERSION
LABEL org.opencontainers.image.title="exegpt gateway" org.opencontainers.image.version="${VERSION}"
USER 65532:65532
ENTRYPOINT ["python", "-m", "exegpt_cli.pods.gateway"]

# Serves as the gateway too, where no image of its own is named.
FROM base AS runner
# For numba's OpenMP threads: torch's own copy has another name, and numba's other threads bear one caller at a time.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=bind,from=libraries,source=/libraries,target=/libraries \
    python -m pip install -c /libraries/constraints.txt -r /libraries/runner.txt -r /libraries/gateway.txt
RUN --mount=type=bind,from=wheels,source=/wheels/whole,target=/wheels \
    python -m pip install --no-deps /wheels/*.whl && python -m pip check
ARG VERSION
LABEL org.opencontainers.image.title="exegpt runner" org.opencontainers.image.version="${VERSION}"
USER 65532:65532
ENTRYPOINT ["python", "-m", "exegpt_runner.worker"]
