# Understudy with its tests' versions of all libraries, for a CPU:
#     docker build -t understudy .
# and for an NVIDIA GPU, with PyTorch's index for the CUDA version of the driver:
#     docker build -t understudy --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
FROM python:3.11-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
RUN python -m venv /opt/understudy
ENV PATH=/opt/understudy/bin:$PATH
COPY constraints.txt ./
# torch first, from its own index: the build of the default index is one for CUDA, and several gigabytes larger.
RUN grep '^torch==' constraints.txt > torch.txt \
    && pip install --no-cache-dir --index-url "$TORCH_INDEX" --requirement torch.txt
COPY pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md understudy_cli.py understudy_pytest.py ./
COPY dags dags
COPY pipeline pipeline
COPY stages stages
RUN pip install --no-cache-dir --constraint constraints.txt ".[lora]" && pip check
COPY docs/examples/watch_and_retrain.py docs/examples/reload_engine.py /opt/understudy/bin/

FROM python:3.11-slim-bookworm
# The compiler builds the C code for the processor that it runs on, at first use.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 understudy \
    && useradd --uid 10001 --gid understudy --no-create-home --home-dir /var/lib/understudy understudy \
    && install --directory --owner=understudy --group=understudy /var/lib/understudy /srv/draft
COPY --from=build /opt/understudy /opt/understudy
ENV PATH=/opt/understudy/bin:$PATH \
    HOME=/var/lib/understudy \
    XDG_CACHE_HOME=/var/lib/understudy/.cache
USER 10001:10001
WORKDIR /var/lib/understudy
CMD ["understudy", "doctor"]
