// pg-boss in two ways. "work": its own worker, several of them, with the batches and the shortest
// poll that its page on workers has options for. "hand": fetch and complete in batches from loops
// of our own, which is not its worker, but the fastest that its API allows.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { PgBoss } = require("pg-boss");
const pg = require("pg");
const { version } = JSON.parse(readFileSync("node_modules/pg-boss/package.json", "utf8"));

const [connectionString, count, way] = [process.argv[2], Number(process.argv[3]), process.argv[4]];
const batchSize = 2000; // larger batches than any other peer gets, since each fetch is expensive
const now = () => Date.now() / 1000;

const boss = new PgBoss({ connectionString, supervise: false, schedule: false, max: 10 });
boss.on("error", (error) => console.error(error));
await boss.start();
await boss.createQueue("noop");
const began = now();
for (let at = 0; at < count; at += 5000) {
  const size = Math.min(5000, count - at);
  await boss.insert("noop", Array.from({ length: size }, (_, n) => ({ data: { number: at + n } })));
}
const enqueued = now() - began;
// As autovacuum would have, sooner or later: without statistics it is five times slower.
const client = new pg.Client({ connectionString });
await client.connect();
await client.query("VACUUM ANALYZE");

let first = 0;
let seen = 0;
const handle = async (job) => {
  first ||= now();
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

const WORKERS = 8; // with fewer, its poll is the limit: a worker fetches at most every half second
const ways = {
  hand: [() => byHand(2), `fetch() and complete(), 2 loops, batchSize ${batchSize}, no priorities`],
  work: [
    () => byWorkers(WORKERS, { batchSize, pollingIntervalSeconds: 0.5, priority: false }),
    `${WORKERS} × work(), batchSize ${batchSize}, pollingIntervalSeconds 0.5, no priorities`,
  ],
};
const [drain, settings] = ways[way];
await drain();
const last = now();
await client.end();
await boss.stop({ graceful: false });
console.log(
  JSON.stringify({
    jobs: seen,
    began: first,
    ended: last,
    enqueue_seconds: enqueued,
    version,
    settings,
  }),
);
process.exit(0);
