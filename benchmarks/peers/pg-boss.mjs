// pg-boss: fetch and complete in batches, several loops at once. Its work() adds a poll of half a
// second between two batches, so these calls are the fastest way it documents.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const found = require("pg-boss");
const PgBoss = found.PgBoss ?? found.default ?? found;
const { version } = JSON.parse(readFileSync(require.resolve("pg-boss/package.json"), "utf8"));

const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
const batchSize = 500;
const loops = 4;

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

const handle = async (job) => job.data.number;
let seen = 0;
const drain = async () => {
  for (;;) {
    const jobs = await boss.fetch("noop", { batchSize });
    if (!jobs.length) return;
    await Promise.all(jobs.map(handle));
    await boss.complete("noop", jobs.map((job) => job.id));
    seen += jobs.length;
  }
};
const started = performance.now();
await Promise.all(Array.from({ length: loops }, drain));
const seconds = (performance.now() - started) / 1000;
await boss.stop({ graceful: false });
console.log(
  JSON.stringify({
    jobs: seen,
    seconds,
    enqueue_seconds: enqueued / 1000,
    version,
    settings: `fetch and complete, ${loops} loops, batchSize ${batchSize}, jobs kept`,
  }),
);
process.exit(0);
