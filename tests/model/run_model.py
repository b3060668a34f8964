#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs spin on a model of this folder: run_model.py (pass|fail) MODEL.pml [--livelock] [-DNAME ...]

pass: the whole state space was searched and no error was found.
fail: spin must find an error (a mutant that survives means that the model cannot see that fault).
Exit 77 (skipped) where spin is not installed.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

LIMIT = 300  # seconds for the search


def run(cmd, cwd):
    r = subprocess.run(cmd, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    return r.returncode, r.stdout


def search(want, model, defines, livelock, work):
    rc, out = run(["spin", "-a", *defines, model], work)
    if rc or not os.path.exists(os.path.join(work, "pan.c")) or "Error" in out:
        sys.exit("spin refused the model:\n" + out)
    mode = ["-DNP"] if livelock else ["-DSAFETY"]
    # Compiling it well takes longer than most searches; a mutant's ends early.
    optimise = "-O0" if want == "fail" else "-O1"
    rc, out = run(["cc", optimise, "-w", "-DCOLLAPSE", "-DVECTORSZ=1024", *mode, "-o", "pan", "pan.c"], work)
    if rc:
        sys.exit("the verifier does not compile:\n" + out)
    # -E: what a resting state must look like is said by the monitor, not by end labels.
    _, out = run(["./pan", "-m100000", "-E", *(["-l"] if livelock else [])], work)
    return out


def main():
    want, rest = sys.argv[1], sys.argv[3:]
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[2])
    defines = [a for a in rest if a.startswith("-D")]
    livelock = "--livelock" in rest
    if not shutil.which("spin"):
        print("skipped: spin is not installed")
        return 77
    with tempfile.TemporaryDirectory() as work:
        out = search(want, model, defines, livelock, work)
        m = re.search(r"errors: (\d+)", out)
        states = re.search(r"(\d+) states, stored", out)
        if not m:
            sys.exit("no verdict from the verifier:\n" + out[-2000:])
        errors = int(m.group(1))
        truncated = "Search not completed" in out or "max search depth too small" in out or "out of memory" in out
        why = re.search(r"pan:1: (.*) \(at depth", out)
        print(f"{' '.join(sys.argv[2:])}: {errors} error(s), {states.group(1) if states else '?'} states"
              + (f", {why.group(1)}" if why else ""))
        if want == "fail":
            if not errors:
                print("FAILED: no counterexample: the model does not see this fault")
            else:
                trail = run(["spin", "-p", "-g", "-t", *defines, model], work)[1] if "-v" in rest else ""
                print(trail, end="")
            return 0 if errors else 1
        if truncated:
            print("FAILED: the search was cut short\n" + out[-1500:])
            return 1
        return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
