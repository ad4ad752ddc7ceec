// pg-boss in three ways. "hand": fetch and complete in batches, several loops at once, the fastest
// that its API allows. "work": its worker, with the batches and the shortest poll that its page on
// workers has options for. "default": its worker as it comes, one job every two seconds.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const found = require("pg-boss");
const pg = require("pg");
const PgBoss = found.PgBoss ?? found.default ?? found;
const { version } = JSON.parse(readFileSync(require.resolve("pg-boss/package.json"), "utf8"));

const [connectionString, count, way] = [process.argv[2], Number(process.argv[3]), process.argv[4]];
const batchSize = 2000; // larger batches than any other peer gets, since each fetch is expensive

const boss = new PgBoss({ connectionString, supervise: false, schedule: false, max: 10 });
boss.on("error", (error) => console.error(error));
await boss.start();
await boss.createQueue("noop");
const began = performance.now();
for (let at = 0; at < count; at += 5000) {
  const size = Math.min(5000, count - at);
  const jobs = Array.from({ length: size }, (_, n) => ({ name: "noop", data: { number: at + n } }));
  // The name of the queue moved from the jobs to the call in version 11.
  await (boss.insert.length > 1 ? boss.insert("noop", jobs) : boss.insert(jobs));
}
const enqueued = performance.now() - began;
// As autovacuum would have, sooner or later: without statistics it is five times slower.
const client = new pg.Client({ connectionString });
await client.connect();
await client.query("VACUUM ANALYZE");

let first = 0;
let seen = 0;
const handle = async (job) => {
  first ||= performance.now();
  seen += 1;
  return job.data.number;
};

const byHand = async (loops) => {
  const loop = async () => {
    for (;;) {
      const jobs = await boss.fetch("noop", { batchSize, priority: false });
      if (!jobs.length) return;
      await Promise.all(jobs.map(handle));
      await boss.complete("noop", jobs.map((job) => job.id));
    }
  };
  await Promise.all(Array.from({ length: loops }, loop));
};

// work() does not wait for its own reports, so the table is asked when the last one is in.
const byWorkers = async (workers, options) => {
  for (let n = 0; n < workers; n++) {
    await boss.work("noop", options, (jobs) => Promise.all(jobs.map(handle)));
  }
  const unfinished = "SELECT 1 FROM pgboss.job WHERE name = 'noop' AND state < 'completed' LIMIT 1";
  while (seen < count || (await client.query(unfinished)).rows.length) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};

const ways = {
  hand: [() => byHand(2), `fetch and complete, 2 loops, batchSize ${batchSize}, no priorities`],
  work: [
    () => byWorkers(4, { batchSize, pollingIntervalSeconds: 0.5, priority: false }),
    `4 × work(), batchSize ${batchSize}, polling every 0.5 s (its least), no priorities`,
  ],
  default: [() => byWorkers(1, {}), "work() without options: 1 job every 2 s"],
};
const [drain, settings] = ways[way];
await drain();
const last = performance.now();
await client.end();
await boss.stop({ graceful: false });
console.log(
  JSON.stringify({
    jobs: way === "default" ? seen - 1 : seen, // the first comes at once, so count intervals
    seconds: (last - first) / 1000,
    enqueue_seconds: enqueued / 1000,
    version,
    settings,
  }),
);
process.exit(0);
