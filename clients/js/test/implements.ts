// Compiled by `npm run types`, never run: the JavaScript has every class, method and property that the types promise.
import { Client } from "../src/client.js";
import { Message } from "../src/core/protocol.js";
import { SETTINGS } from "../src/core/session.js";
import * as errors from "../src/errors.js";
import { Subscription } from "../src/subscription.js";
import * as http from "../src/http.js";
import type * as promised from "migratory-client";
import type * as promisedHttp from "migratory-client/http";

type Members<Kind> = { [Key in Exclude<keyof Kind, "stack" | "cause">]-?: unknown };
const comparePositions = (): number => 0; // in src/index.js itself, behind the types
const exported: Members<typeof promised> = { Client, Message, Subscription, comparePositions, ...errors };
const client: Members<promised.Client> = new Client([]);
const stream: Members<promised.Subscription> = {} as Subscription;
const message: Members<promised.Message> = {} as Message;
const error: Members<promised.PublishError> = {} as errors.PublishError;
const refusal: Members<promised.SubscribeError> = {} as errors.SubscribeError;
const gap: Members<promised.GapError> = {} as errors.GapError;
const settings: Members<promised.Settings> = SETTINGS;
const allowed: Members<typeof SETTINGS> = {} as Required<promised.Settings>;
const fallback: Members<typeof promisedHttp> = http;
[fallback, exported, client, stream, message, error, refusal, gap, settings, allowed].length;
