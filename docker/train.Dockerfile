# Training on NVIDIA GPUs: torch brings its own CUDA libraries, the machine its driver. Build in the root of the repository:
#   docker build --file docker/train.Dockerfile --tag tuplet-train .
# Run; decoding threads and processes share memory, so give them some:
#   docker run --gpus all --shm-size 8g --user "$(id -u):$(id -g)" --volume "$PWD:/work" tuplet-train \
#     train photos/ --out runs/photos --precision bfloat16
FROM python:3.13-slim
# torch.compile builds its CPU and launcher code with a C compiler.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc g++ libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[glyphs,tables,lite0,timm,onnx,search,serve]' \
 && useradd --uid 10001 --no-create-home tuplet
USER 10001
WORKDIR /work
# `docker run --user` may name a user without a home, and torch, Triton and the hubs keep their caches there.
ENV HOME=/tmp PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor
ENTRYPOINT ["tuplet"]
CMD ["--help"]
