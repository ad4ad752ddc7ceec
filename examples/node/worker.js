// node worker.js HOST:PORT
//
// A worker: grants credits for its free slots, runs handlers, beats for what runs, and reports.
// SIGTERM lets it finish what runs.
"use strict";

const { randomUUID } = require("node:crypto");
const { Client, jittered, sleep } = require("./pulse.js");

const SLOTS = 10;
const WAIT = 20; // seconds that a grant may stand

// Topic -> function of the named arguments and an AbortSignal; what it returns is the result.
const handlers = {
  async add({ a, b }) {
    return a + b;
  },
  async fail({ why }) {
    throw new Error(why);
  },
  async wait({ seconds }, signal) {
    await Promise.race([
      sleep(seconds),
      new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
    ]);
    return "waited";
  },
};

class Worker {
  constructor(address) {
    this.id = randomUUID(); // new at every start
    this.client = new Client(address);
    this.runs = new Map(); // job id -> run
    this.stopping = false;
  }

  async run() {
    this.beating = setInterval(() => this.beat(), 1000);
    for (let wait = 0.1; !this.stopping; wait = Math.min(wait * 2, 5)) {
      try {
        await this.stream();
        wait = 0.1;
      } catch (error) {
        if (!this.stopping) console.error(`stream: ${error.message}`);
        await sleep(jittered(wait));
      }
      await this.releaseStrays().catch(() => {}); // again after the next break
    }
    while (this.runs.size) await sleep(0.02);
    clearInterval(this.beating);
    this.client.close();
  }

  stop() {
    this.stopping = true;
    if (this.call) {
      this.call.write({ withdraw: {} }); // answer the last grant now
      this.call.end(); // no more grants: the server ends the stream after that answer
    }
  }

  // One StreamJobs call, to its end.
  stream() {
    return new Promise((resolve, reject) => {
      const call = (this.call = this.client.work.StreamJobs(this.client.metadata));
      let grants = 0;
      let asked = false;
      this.grant = () => {
        const credits = SLOTS - this.runs.size;
        if (asked || this.stopping || credits < 1) return;
        asked = true;
        call.write({ grant: { id: ++grants, credits, waitSeconds: WAIT } });
      };
      call.on("data", ({ batch, goAway }) => {
        if (batch) {
          asked = false;
          for (const assignment of batch.assignments) this.start(assignment);
          if (batch.lostAnswers) this.releaseStrays().catch(() => {});
          this.grant();
        } else if (goAway) {
          call.end(); // with several servers, connect to another one here
        }
      });
      call.on("end", resolve);
      call.on("error", reject);
      const topics = Object.keys(handlers).map((name) => ({ name }));
      call.write({ hello: { workerId: this.id, queues: ["default"], topics } });
      this.grant();
    });
  }

  start(assignment) {
    const run = {
      lease: { jobId: assignment.jobId, leaseToken: assignment.leaseToken, workerId: this.id },
      leaseSeconds: assignment.leaseSeconds,
      confirmedAt: Date.now(),
      abort: new AbortController(),
      lost: false,
    };
    this.runs.set(assignment.jobId, run);
    this.execute(run, assignment).finally(() => {
      this.runs.delete(assignment.jobId);
      this.grant();
    });
  }

  async execute(run, assignment) {
    const outcome = await this.outcome(run, assignment);
    // The heart goes on beating for it until the report is answered.
    while (!run.lost) {
      try {
        const report = { lease: run.lease, ...outcome };
        await this.client.insist(this.client.work, "ReportResults", { reports: [report] });
        return;
      } catch (error) {
        console.error(`report of ${assignment.jobId}: ${error.message}`);
        await sleep(jittered(1));
      }
    }
  }

  async outcome(run, assignment) {
    try {
      const handler = handlers[assignment.topic];
      const result = await handler(JSON.parse(assignment.payload), run.abort.signal);
      return { succeeded: { result: JSON.stringify(result ?? null) } };
    } catch (error) {
      if (run.cancelled) return { cancelled: { reason: "cancelled on request" } };
      return { failed: { error: `${error.name}: ${error.message}`, traceback: error.stack } };
    }
  }

  // Every third of a lease: one heartbeat for everything that runs.
  async beat() {
    const now = Date.now();
    const runs = [...this.runs.values()];
    for (const run of runs) {
      // Nobody answered for most of a lease: another worker may have the job by now.
      if (now - run.confirmedAt > 850 * run.leaseSeconds) this.lose(run);
    }
    const due = runs.some((run) => now - run.confirmedAt > (1000 * run.leaseSeconds) / 3);
    if (!due || this.isBeating) return;
    this.isBeating = true;
    try {
      const leases = runs.map((run) => run.lease);
      const { answers } = await this.client.call(this.client.work, "Heartbeat", { leases });
      runs.forEach((run, index) => {
        if (answers[index] === "ANSWER_LOST") this.lose(run);
        else run.confirmedAt = now;
        if (answers[index] === "ANSWER_CANCEL") {
          run.cancelled = true;
          run.abort.abort(new Error("cancelled"));
        }
      });
    } catch (error) {
      console.error(`heartbeat: ${error.message}`);
    } finally {
      this.isBeating = false;
    }
  }

  lose(run) {
    run.lost = true; // no report: somebody else decides
    run.abort.abort(new Error("the lease is lost"));
  }

  // Jobs that a server claimed for us and that never arrived, because the stream broke.
  async releaseStrays() {
    const { leases } = await this.client.call(this.client.work, "ListLeases", { workerId: this.id });
    const strays = leases.filter(({ jobId }) => !this.runs.has(jobId));
    if (strays.length) await this.client.call(this.client.work, "Release", { leases: strays });
  }
}

const worker = new Worker(process.argv[2]);
process.on("SIGTERM", () => worker.stop());
process.on("SIGINT", () => worker.stop());
worker.run().then(() => console.error("worker ended"));
console.error(`worker ${worker.id} started`);
