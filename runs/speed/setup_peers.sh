#!/usr/bin/env bash
# The peers, each in an environment of its own on the CPU, from public wheels: DIR/vllm and DIR/sglang.
# usage: setup_peers.sh DIR [vllm] [sglang]      about 3 GB each; needs Python 3.11 on Linux, x86-64
# A peer's environment is DIR/PEER/venv, the Python files of its wheel lie in DIR/PEER/src.
set -eu
folder=$1; shift
python=${PYTHON:-python3}
# What the imported parts of both peers import in turn.
packages="numpy transformers>=5.16.1,<5.21 msgspec cachetools cbor2 blake3 psutil regex pyzmq cloudpickle pydantic py-cpuinfo
  prometheus_client pillow einops pybase64 xxhash aiohttp openai-harmony openai uvloop xgrammar fastapi partial-json-parser
  llguidance requests"

make_peer() {  # name version torch and further packages…
  local place=$folder/$1 wheel=$1==$2; shift 2
  mkdir -p "$place/src"
  "$python" -m venv "$place/venv"
  "$place/venv/bin/pip" install -q "$@"
  # shellcheck disable=SC2086
  "$place/venv/bin/pip" install -q $packages
  "$place/venv/bin/pip" download -q "$wheel" --no-deps --only-binary=:all: -d "$place"
  (cd "$place/src" && "../venv/bin/python" -m zipfile -e ../*.whl .)
}

for peer in ${*:-vllm sglang}; do
  case $peer in
    vllm)
      make_peer vllm 0.33.0 torch==2.13.0
      find "$folder/vllm/src" -name '*.so' -delete  # they want CUDA; nothing measured here is in them
      check="import vllm.v1.core.sched.scheduler" ;;
    sglang)
      make_peer sglang 0.5.23 torch==2.14.1 torchvision orjson IPython dill sentencepiece compressed_tensors gguf
      check="import sglang.srt.mem_cache.rust_tree_core.adapter, sglang.srt.mem_cache.radix_cache" ;;
    *) echo "found the peer $peer; accepted: vllm, sglang" >&2; exit 2 ;;
  esac
  PYTHONPATH="$folder/$peer/src" "$folder/$peer/venv/bin/python" -W ignore -c "$check"
  echo "$peer is ready in $folder/$peer"
done
