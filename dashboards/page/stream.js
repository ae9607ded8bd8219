// Server-sent events over fetch: EventSource could not send the key. Reconnects by itself, with the last event's id.

const SILENCE_MS = 12000; // the server says something every five seconds
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;

export class Stream {
  // handlers: event(name, data), state(name, words), refused(status, message)
  constructor(url, handlers) {
    this.url = url;
    this.handlers = handlers;
    this.key = null;
    this.lastId = null;
    this.stopped = true;
  }

  start(key) {
    this.key = key;
    if (this.stopped) {
      this.stopped = false;
      this.#run();
    }
  }

  async #run() {
    let wait = FIRST_WAIT_MS;
    while (!this.stopped) {
      try {
        await this.#listen(() => { wait = FIRST_WAIT_MS; }); // the server ends a stream now and then
      } catch (error) {
        if (this.stopped) return;
        this.handlers.state("lost", error.words ?? "server unreachable, trying again");
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  async #listen(began) {
    const abort = new AbortController();
    let watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
    try {
      const headers = { accept: "text/event-stream" };
      if (this.key) headers.authorization = `Bearer ${this.key}`;
      if (this.lastId) headers["last-event-id"] = this.lastId;
      const response = await fetch(this.url, { headers, signal: abort.signal, cache: "no-store" });
      if (!response.ok) await this.#refuse(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
        began();
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        blocks.forEach((block) => this.#take(block));
      }
    } finally {
      clearTimeout(watchdog);
      abort.abort();
    }
  }

  async #refuse(response) {
    const message = (await response.json().catch(() => null))?.error?.message ?? `status ${response.status}`;
    if (response.status === 401 || response.status === 403) {
      this.stopped = true;
      this.handlers.refused(response.status, message);
    }
    throw Object.assign(new Error(message), { words: message });
  }

  #take(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const colon = line.indexOf(": ");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
    if (fields.data === undefined) return;
    if (fields.id) this.lastId = fields.id;
    this.handlers.event(fields.event, JSON.parse(fields.data));
  }
}
