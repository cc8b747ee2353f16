# hotset on the CPU: docker build -t hotset . && docker run --rm -v "$PWD:/data" hotset preprocess log.tsv --out shards
FROM python:3.11-slim

# torch from the index of CPU builds: the default one brings several gigabytes for GPUs.
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' /tmp/constraints.txt)"

COPY . /src
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt '/src[train,report]' && rm -rf /src /tmp/constraints.txt

# Compiled kernels are kept between runs where a volume is mounted here.
ENV NUMBA_CACHE_DIR=/var/cache/hotset
RUN mkdir -p /var/cache/hotset && chmod 777 /var/cache/hotset

WORKDIR /data
ENTRYPOINT ["hotset"]
