// What a page loads: one minified module, compressed.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { buildSync } from "esbuild";

const LIMIT = 12 * 1024;
const HTTP_LIMIT = 3.5 * 1024;

const entryPoints = [new URL("../src/index.js", import.meta.url).pathname];
const options = { bundle: true, minify: true, format: "esm", target: "es2022", write: false, metafile: true };
const { outputFiles, metafile } = buildSync({ entryPoints, ...options });

test("the client has less than 12 KiB, and no dependencies", () => {
  const size = gzipSync(outputFiles[0].contents, { level: 9 }).length;
  assert.ok(size < LIMIT, `${size} bytes, which is not below ${LIMIT}`);
  for (const input of Object.keys(metafile.inputs)) assert.match(input, /^(.*\/)?src\//);
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
  assert.equal(manifest.dependencies, undefined);
});

test("the fallback to HTTP has less than 3.5 KiB", () => {
  const http = buildSync({ ...options, entryPoints: [new URL("../src/http.js", import.meta.url).pathname] });
  const size = gzipSync(http.outputFiles[0].contents, { level: 9 }).length;
  assert.ok(size < HTTP_LIMIT, `${size} bytes, which is not below ${HTTP_LIMIT}`);
});

test("a minified client has the same exports, and its errors their names", async () => {
  const bundle = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
  const source = await import("../src/index.js");
  assert.deepEqual(Object.keys(bundle), Object.keys(source));
  const errors = Object.keys(bundle).filter((name) => bundle[name].prototype instanceof Error);
  assert.equal(errors.length, 6);
  for (const name of errors) assert.equal(bundle[name].prototype.name, name);
});

test("the lock file names no registry", () => {
  const lock = JSON.parse(readFileSync(new URL("../package-lock.json", import.meta.url), "utf8"));
  assert.ok(Object.keys(lock.packages).length > 3);
  for (const [name, { resolved }] of Object.entries(lock.packages)) assert.equal(resolved, undefined, name);
});
