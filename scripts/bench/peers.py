#!/usr/bin/env python3
"""Drive load clients against truthserver and hold their reports against its record.

A run is a fresh server and one client process. Peers are interleaved (A, B, C, then
again), so that noise falls on all alike; ratios against oha are taken within a pass.
CPU and memory are the client process's own, from wait4. Started by `peers`.
"""
import argparse, json, os, resource, shlex, signal, socket, statistics, subprocess, sys, time

PEERS_DIR, OUT = os.environ["PEERS"], os.environ["BENCH_OUT"]
SERVER_DIR, GSPBENCH = os.environ["TRUTH_TARGET"] + "/release", os.environ["GSPBENCH"]
NICE = os.environ["BENCH_NICE"]  # autogroup nice of server and client
PROMPT = 64  # words
TOKENIZER = f"{PEERS_DIR}/tokenizer"
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}

CASES = {
    # moderate load
    "T1": dict(conc=64, n=512, toks=128, server="--ttft-ms 50 --itl-ms 10"),
    # many streams, all started at once; their first tokens are spread
    "T2a": dict(conc=1024, n=1024, toks=128, server="--ttft-ms uniform:200:800 --itl-ms 50"),
    "T2b": dict(conc=4096, n=4096, toks=64, server="--ttft-ms uniform:500:1500 --itl-ms 50"),
    # as fast as the client takes it; with 16 events a write the server does not bound it
    "T3": dict(conc=64, n=512, toks=256, server="--burst"),
    "T3b": dict(conc=64, n=1024, toks=512, server="--burst --events-per-write 16"),
    # the other two routes
    "T3c": dict(conc=64, n=512, toks=256, server="--burst", api="chat"),
    "T3g": dict(conc=64, n=512, toks=256, server="--burst", api="generate"),
    # start-up
    "T4": dict(conc=2, n=10, toks=8, server="--ttft-ms 1 --itl-ms 1"),
}


# -- clients: a command line, and a reader of what the client reports ---------------

def null_command(c, port, out):
    return (f"{SERVER_DIR}/nullclient --port {port} --concurrency {c['conc']} --requests {c['n']} "
            f"--max-tokens {c['toks']} --prompt-words {PROMPT} --path {PATHS[c['api']]}")


def null_report(out):
    d = json.loads(open(f"{out}/stdout").read().splitlines()[-1])
    return dict({f"{m}_{s}": d[f"{m}_{s}_ms"] for m in ("ttft", "itl") for s in ("mean", "p99")},
                duration=d["wall_s"], ok=d["requests"])


def oha_command(c, port, out):
    body = {"model": "truth", "max_tokens": c["toks"], "stream": True}
    prompt = " ".join(["word"] * PROMPT)
    if c["api"] == "chat": body["messages"] = [{"role": "user", "content": prompt}]
    elif c["api"] == "generate": body = {"text": prompt, "sampling_params": {"max_new_tokens": c["toks"]}, "stream": True}
    else: body["prompt"] = prompt
    return (f"{PEERS_DIR}/oha/bin/oha -n {c['n']} -c {c['conc']} -m POST -T application/json "
            f"-d {shlex.quote(json.dumps(body))} --no-tui --output-format json http://127.0.0.1:{port}{PATHS[c['api']]}")


def oha_report(out):
    d = json.load(open(f"{out}/stdout"))
    return dict(duration=d["summary"]["total"], ok=sum(d["statusCodeDistribution"].values()))


def sglang_command(c, port, out):
    backend = {"chat": "sglang-oai-chat", "generate": "sglang", "completions": "sglang-oai"}[c["api"]]
    return (f"{PEERS_DIR}/venv/bin/python {PEERS_DIR}/sglbench.py --backend {backend} --host 127.0.0.1 --port {port} "
            f"--dataset-name random-ids --random-input-len {PROMPT} --random-output-len {c['toks']} --random-range-ratio 1.0 "
            f"--num-prompts {c['n']} --max-concurrency {c['conc']} --model {TOKENIZER} --tokenizer {TOKENIZER} "
            f"--warmup-requests 0 --output-file {out}/report.jsonl --disable-tqdm --disable-retokenize")


def vllm_command(c, port, out):
    backend, path = ("openai-chat", PATHS["chat"]) if c["api"] == "chat" else ("openai", PATHS["completions"])
    return (f"{PEERS_DIR}/vllm-rs bench serve --backend {backend} --base-url http://127.0.0.1:{port} --endpoint {path} "
            f"--dataset-name random --random-input-len {PROMPT} --random-output-len {c['toks']} --num-prompts {c['n']} "
            f"--max-concurrency {c['conc']} --model {TOKENIZER} --tokenizer {TOKENIZER} --ignore-eos --disable-tqdm "
            f"--percentile-metrics ttft,tpot,itl,e2el --save-result --result-dir {out} --result-filename report.jsonl")


def serving_report(out):
    d = json.loads(open(f"{out}/report.jsonl").read().splitlines()[-1])
    r = {f"{m}_{s}": d[f"{s}_{m}_ms"] for m in ("ttft", "itl") for s in ("mean", "p99") if f"{s}_{m}_ms" in d}
    return dict(r, duration=d["duration"], ok=d["completed"])


def gspbench_command(c, port, out):
    groups = 2 if c["n"] < 64 else 64
    return (f"{GSPBENCH} run --target http://127.0.0.1:{port} --api {c['api']} --seed 7 --gsp-num-groups {groups} "
            f"--gsp-prompts-per-group {c['n'] // groups} --gsp-system-prompt-len {PROMPT - 16} --gsp-question-len 16 "
            f"--gsp-output-len {c['toks']} --max-concurrency {c['conc']} --warmup-requests 0 --no-flush-cache "
            f"--disable-tqdm --out {out}/run")


def gspbench_report(out):
    d = json.load(open(f"{out}/run/run.json"))
    m = d["metrics"]
    # Gaps between frames are what the server records; tokens of a frame may be unknown.
    gaps = m["itl_ms"] if m["itl_ms"] and m["itl_ms"]["count"] else m["icl_ms"]
    r = {f"{n}_{s}": v[s] for n, v in (("ttft", m["ttft_ms"]), ("itl", gaps)) for s in ("mean", "p99")}
    return dict(r, duration=m["duration_s"]["value"] if isinstance(m["duration_s"], dict) else m["duration_s"],
                ok=d["totals"]["complete"])


PEERS = {
    "nullclient": (null_command, null_report),
    "oha": (oha_command, oha_report),
    "sglang-rust": (sglang_command, serving_report),
    "vllm-rs": (vllm_command, serving_report),
    "gspbench": (gspbench_command, gspbench_report),
}


# -- the server's record ---------------------------------------------------------

def quantile(values, p):
    if not values: return float("nan")
    x = (len(values) - 1) * p
    a = int(x); b = min(a + 1, len(values) - 1)
    return values[a] + (values[b] - values[a]) * (x - a)


def truth(path, n):
    """What happened, from the record: of the last n generation requests."""
    lines = [json.loads(l) for l in open(path)]
    summary = next((d for d in lines if d["kind"] == "server_summary"), {})
    requests = [d for d in lines if d["kind"] == "request"]
    turns = sorted((d for d in requests if d["seq"] > 0 and d["status"] == 200), key=lambda d: d["seq"])
    r = dict(first_any=min(d["t_recv_ns"] for d in requests), first_turn=turns[0]["t_kern_ns"])
    done = [d for d in turns[-n:] if d["outcome"] == "ok" and d["t_first_ns"]]
    series = {"ttft": sorted((d["t_first_ns"] - d["t_kern_ns"]) / 1e6 for d in done),
              "itl": sorted(g / 1e3 for d in done for g in d["gaps_us"])}
    for name, values in series.items():
        r[f"{name}_mean"] = sum(values) / max(1, len(values)); r[f"{name}_p99"] = quantile(values, .99)
    edges = sorted([(d["t_kern_ns"], 1) for d in done] + [(d["t_end_ns"], -1) for d in done])
    now = peak = 0
    for _, step in edges:
        now += step; peak = max(peak, now)
    return dict(r, events=sum(d["chunks"] for d in done), done=len(done), peak=peak,
                late_ms=summary.get("late_max_us", 0) / 1e3, connections=summary.get("connections", 0))


# -- one run ---------------------------------------------------------------------

def prefer(pid="self"):
    try: open(f"/proc/{pid}/autogroup", "w").write(NICE)
    except OSError: pass


def run(peer, case, turn, timeout):
    c = dict({"api": "completions"}, **CASES[case])
    command, report = PEERS[peer]
    out = f"{OUT}/{case}-{peer}-{turn}"
    subprocess.run(["rm", "-rf", out], check=True); os.makedirs(out)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    server = subprocess.Popen([f"{SERVER_DIR}/truthserver", "--port", str(port), "--record", f"{out}/truth.jsonl", "--cache-block", "0",
                               "--max-seconds", str(timeout + 30), *shlex.split(c["server"])],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True)
    try:
        prefer(server.pid)
        server.stdout.readline()
        line = command(c, port, out)
        open(f"{out}/command", "w").write(line + "\n")
        t0 = time.monotonic_ns()
        client = subprocess.Popen(shlex.split(line), stdout=open(f"{out}/stdout", "w"), stderr=open(f"{out}/stderr", "w"),
                                  preexec_fn=lambda: (os.setsid(), prefer()), cwd=out)
        status, usage = None, None
        while status is None:
            pid, code, used = os.wait4(client.pid, os.WNOHANG)
            if pid: status, usage = os.waitstatus_to_exitcode(code), used
            elif time.monotonic_ns() - t0 > timeout * 1e9: os.killpg(client.pid, signal.SIGKILL)
            else: time.sleep(0.005)
    finally:
        server.send_signal(signal.SIGTERM); server.wait()
    row = dict(peer=peer, case=case, turn=turn, status=status, cpu=usage.ru_utime + usage.ru_stime, cpu_user=usage.ru_utime,
               rss_mib=usage.ru_maxrss / 1024, load=os.getloadavg()[0])
    try:
        row["truth"], row["client"] = t, r = truth(f"{out}/truth.jsonl", c["n"]), report(out)
        row["cpu_per_1k_ms"] = row["cpu"] / t["events"] * 1e6
        row["rate"] = r["ok"] * c["toks"] / r["duration"]
        row["start_s"] = (t["first_any"] - t0) / 1e9
        row["first_turn_s"] = (t["first_turn"] - t0) / 1e9
        for k in ("ttft_mean", "ttft_p99", "itl_mean", "itl_p99"):
            if k in r: row["err_" + k] = r[k] - t[k]
    except Exception as why:
        row["failure"] = repr(why)
    with open(f"{OUT}/results.jsonl", "a") as f: f.write(json.dumps(row) + "\n")
    if os.path.exists(f"{out}/truth.jsonl") and os.path.getsize(f"{out}/truth.jsonl") > 4 << 20: os.remove(f"{out}/truth.jsonl")
    show = lambda k, f: format(row[k], f) if k in row else "-"
    print(f"{case:4} {peer:12} exit {status} cpu {row['cpu']:.2f} s (user {row['cpu_user']:.2f}) {show('cpu_per_1k_ms', '.2f')} ms/1k, "
          f"{show('rate', ',.0f')}/s, {row['rss_mib']:.0f} MiB, ttft err {show('err_ttft_mean', '+.2f')}/{show('err_ttft_p99', '+.2f')}, "
          f"itl err {show('err_itl_mean', '+.2f')}/{show('err_itl_p99', '+.2f')}, start {show('start_s', '.3f')}, "
          f"peak {row.get('truth', {}).get('peak')}, server late {row.get('truth', {}).get('late_ms', 0):.1f} ms {row.get('failure', '')}", flush=True)


# -- the table -------------------------------------------------------------------

def table():
    rows = [r for r in map(json.loads, open(f"{OUT}/results.jsonl")) if r["status"] in (0, 4) and "rate" in r]
    peers = [p for p in PEERS if any(r["peer"] == p for r in rows)]

    def cell(case, peer, key, form, scale=1.0):
        values = [r[key] * scale for r in rows if r["case"] == case and r["peer"] == peer and key in r]
        if not values: return "–"
        middle = format(statistics.median(values), form)
        return f"{middle} ({format(min(values), form)}–{format(max(values), form)})" if len(values) > 1 else middle

    def ratio(case, key):
        """gspbench against oha of the same pass, median."""
        by = {(r["peer"], r["turn"]): r[key] for r in rows if r["case"] == case and key in r}
        pairs = [v / by["oha", t] for (p, t), v in by.items() if p == "gspbench" and ("oha", t) in by]
        return format(statistics.median(pairs), ".2f") if pairs else "–"

    measures = {
        "paced": [("CPU ms per 1k events", "cpu_per_1k_ms", ".1f", 1), ("TTFT error mean, ms", "err_ttft_mean", ".2f", 1),
                  ("TTFT error p99, ms", "err_ttft_p99", ".2f", 1), ("ITL p99 error, ms", "err_itl_p99", ".2f", 1), ("resident MiB", "rss_mib", ".0f", 1)],
        # Bursts are bounded by nothing but CPU; what the kernel buffers makes the record's times the writer's own.
        "burst": [("events/s", "rate", ",.0f", 1), ("CPU s per million events", "cpu_per_1k_ms", ".2f", 1), ("resident MiB", "rss_mib", ".0f", 1)],
        "start": [("exec to first request, s", "start_s", ".3f", 1), ("exec to first turn, s", "first_turn_s", ".3f", 1)],
    }
    print("Median (least–most) over the passes; `÷ oha`: gspbench against oha of the same pass, median.\n")
    print("| case | " + " | ".join(peers) + " | ÷ oha |\n|---|" + "---|" * (len(peers) + 1))
    for case, c in CASES.items():
        if not any(r["case"] == case for r in rows): continue
        kind = "start" if case == "T4" else "burst" if "--burst" in c["server"] else "paced"
        for label, key, form, scale in measures[kind]:
            has_ratio = key in ("cpu_per_1k_ms", "rate")
            print(f"| {case}: {label} | " + " | ".join(cell(case, p, key, form, scale) for p in peers) + f" | {ratio(case, key) if has_ratio else ''} |")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("what", choices=["run", "table"])
    a.add_argument("--cases", default="T1,T2a,T2b,T3,T3b,T4")
    a.add_argument("--peers", default=",".join(PEERS))
    a.add_argument("--passes", type=int, default=3)
    a.add_argument("--timeout", type=int, default=120, help="seconds that a client may take")
    o = a.parse_args()
    if o.what == "table": return table()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.makedirs(OUT, exist_ok=True)
    begun = int(time.time())
    for case in o.cases.split(","):
        for n in range(o.passes):
            for peer in o.peers.split(","): run(peer, case, f"{begun}-{n + 1}", o.timeout)


if __name__ == "__main__":
    main()
