#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ptx2cpp.py IN.ptx OUT.cpp: PTX to C++ that runs on the SIMT runtime. Stops at whatever it does not know."""
import sys

import ptx_emit
import ptx_parse


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        with open(sys.argv[1], encoding="utf-8") as f:
            text = ptx_emit.emit(ptx_parse.parse(f.read(), sys.argv[1].rsplit("/", 1)[-1]))
    except ptx_parse.PtxError as e:
        sys.exit(f"ptx2cpp: {e}")
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
