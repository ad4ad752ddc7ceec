// graphile-worker: the settings of its own performance page, in one process.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { run, makeWorkerUtils, Logger } = require("graphile-worker");
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

let first = 0;
let last = 0;
let seen = 0;
let finish;
const finished = new Promise((resolve) => (finish = resolve));
const runner = await run({
  preset: { worker: { connectionString, ...settings } },
  logger: quiet,
  noHandleSignals: true,
  taskList: {
    noop: async () => {
      last = performance.now();
      first ||= last;
      if (++seen >= count) finish();
    },
  },
});
await finished;
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
