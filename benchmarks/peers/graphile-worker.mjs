// graphile-worker: the settings of its own performance page, in one process.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { run, makeWorkerUtils, Logger } = require("graphile-worker");
const pg = require("pg");
const { version } = JSON.parse(
  readFileSync(require.resolve("graphile-worker/package.json"), "utf8"),
);

const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
const quiet = new Logger(() => () => {});
const settings = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

const utils = await makeWorkerUtils({ connectionString, logger: quiet });
await utils.migrate();
const began = performance.now();
for (let at = 0; at < count; at += 5000) {
  const size = Math.min(5000, count - at);
  await utils.addJobs(
    Array.from({ length: size }, (_, n) => ({ identifier: "noop", payload: { number: at + n } })),
  );
}
const enqueued = performance.now() - began;
await utils.release();
const client = new pg.Client({ connectionString });
await client.connect();
await client.query("VACUUM ANALYZE"); // as autovacuum would have, sooner or later

let first = 0;
let seen = 0;
let finish;
const finished = new Promise((resolve) => (finish = resolve));
const runner = await run({
  preset: { worker: { connectionString, ...settings } },
  logger: quiet,
  noHandleSignals: true,
  taskList: {
    noop: async () => {
      first ||= performance.now();
      if (++seen >= count) finish();
    },
  },
});
await finished;
// It reports behind the runs: wait until the last job has gone from the table.
for (;;) {
  const { rows } = await client.query("SELECT 1 FROM graphile_worker._private_jobs LIMIT 1");
  if (!rows.length) break;
  await new Promise((resolve) => setTimeout(resolve, 2));
}
const last = performance.now();
await client.end();
await runner.stop();
console.log(
  JSON.stringify({
    jobs: seen,
    seconds: (last - first) / 1000,
    enqueue_seconds: enqueued / 1000,
    version,
    settings: "localQueue 500, 24 concurrent, batched completion, finished jobs deleted",
  }),
);
process.exit(0);
