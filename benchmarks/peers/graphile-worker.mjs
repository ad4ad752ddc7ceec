// graphile-worker: the settings of its own performance page, in one process. With "enqueue", it
// writes all jobs in one call and drains none.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { run, makeWorkerUtils, Logger } = require("graphile-worker");
const pg = require("pg");
const { version } = JSON.parse(
  readFileSync("node_modules/graphile-worker/package.json", "utf8"),
);

const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
const onlyEnqueue = process.argv[4] === "enqueue";
const chunk = onlyEnqueue ? count : 5000;
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
const now = () => Date.now() / 1000;
const began = now();
for (let at = 0; at < count; at += chunk) {
  const size = Math.min(chunk, count - at);
  await utils.addJobs(
    Array.from({ length: size }, (_, n) => ({ identifier: "noop", payload: { number: at + n } })),
  );
}
const enqueued = now() - began;
await utils.release();
if (onlyEnqueue) {
  console.log(JSON.stringify({ enqueue_seconds: enqueued }));
  process.exit(0);
}
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
      first ||= now();
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
const last = now();
await client.end();
await runner.stop();
console.log(
  JSON.stringify({
    jobs: seen,
    began: first,
    ended: last,
    enqueue_seconds: enqueued,
    version,
    settings:
      "localQueue.size 500, concurrentJobs 24, completeJobBatchDelay 0, failJobBatchDelay 0",
  }),
);
process.exit(0);
