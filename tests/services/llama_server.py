# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own server with the language model that `make setup` fetches: `python llama_server.py FILE`.

Prints its address, and runs until its standard input ends.
"""

import sys

import xllamacpp


def main(path: str) -> None:
    """Serves the model of a file on a free port."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 2048, 4, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
