# hotset on the CPU, as the user who calls it; the volume keeps compiled kernels:
#   docker build -t hotset .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" -v hotset:/var/cache/hotset hotset preprocess log.tsv --out DIR
# Several processes: add `--entrypoint torchrun` before the name of the image.
FROM python:3.11-slim

# torch from the index of CPU builds: the default one brings several gigabytes for GPUs.
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' /tmp/constraints.txt)"

COPY . /src
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt '/src[train,report]' && rm -rf /src /tmp/constraints.txt

# A new volume takes the mode of this folder, so that any user may write there.
ENV NUMBA_CACHE_DIR=/var/cache/hotset HOME=/tmp
RUN useradd --uid 1000 hotset && mkdir /var/cache/hotset && chmod 777 /var/cache/hotset
VOLUME /var/cache/hotset

USER hotset
WORKDIR /data
ENTRYPOINT ["hotset"]
