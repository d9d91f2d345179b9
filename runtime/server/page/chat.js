// The chat box: a conversation with streamed answers that can be stopped.

export class Chat {
  constructor(model) {
    this.model = model;
    this.history = [];
    this.abort = null;
    this.messages = document.getElementById("messages");
    this.question = document.getElementById("question");
    this.button = document.getElementById("send");
    document.getElementById("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.abort) this.abort.abort();
      else this.ask();
    });
    document.getElementById("clear").addEventListener("click", () => this.clear());
    this.question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.abort) this.ask();
      }
    });
  }

  clear() {
    this.abort?.abort();
    this.history = [];
    this.messages.textContent = "";
    this.question.focus();
  }

  async ask() {
    const text = this.question.value.trim();
    if (!text) return;
    this.question.value = "";
    this.history.push({ role: "user", content: text });
    this.show("user", "You").text.textContent = text;
    const shown = this.show("assistant", this.model());
    shown.element.classList.add("busy");
    this.setBusy(new AbortController());
    const started = performance.now();
    let answer = "", tokens = 0, first = null, reason = null;
    try {
      for await (const event of this.stream()) {
        if (event.error) throw new Error(event.error.message);
        if (event.usage) tokens = event.usage.completion_tokens;
        const choice = event.choices[0];
        if (!choice) continue;
        if (choice.delta.content) {
          first ??= performance.now();
          answer += choice.delta.content;
          shown.text.textContent = answer;
          this.scroll();
        }
        reason = choice.finish_reason ?? reason;
      }
      const seconds = (performance.now() - (first ?? started)) / 1e3;
      const speed = tokens > 1 ? `, ${((tokens - 1) / Math.max(seconds, 1e-3)).toFixed(0)} tokens/s` : "";
      shown.note.textContent = `${tokens} tokens${speed}, ${reason}`;
      this.history.push({ role: "assistant", content: answer });
    } catch (error) {
      const isStopped = error.name === "AbortError";
      shown.element.classList.toggle("failed", !isStopped);
      shown.note.textContent = isStopped ? "stopped" : error.message;
      if (isStopped && answer) this.history.push({ role: "assistant", content: answer });
      else this.history.pop();
    } finally {
      shown.element.classList.remove("busy");
      this.setBusy(null);
      this.scroll();
    }
  }

  async *stream() {
    const key = document.getElementById("key").value;
    const reply = await fetch("v1/chat/completions", {
      method: "POST",
      signal: this.abort.signal,
      headers: { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) },
      body: JSON.stringify({
        model: this.model(),
        messages: this.history,
        temperature: Number(document.getElementById("temperature").value),
        max_tokens: Number(document.getElementById("longest").value) || 512,
        stream: true,
        stream_options: { include_usage: true },
      }),
    });
    if (!reply.ok) {
      if (reply.status === 401) document.getElementById("key-label").hidden = false;
      throw new Error((await reply.json()).error.message);
    }
    const decoder = new TextDecoder();
    let held = "";
    for (const reader = reply.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) return;
      held += decoder.decode(value, { stream: true });
      const events = held.split("\n\n");
      held = events.pop();
      for (const event of events) {
        if (event.startsWith("data: {")) yield JSON.parse(event.slice(6));
      }
    }
  }

  show(role, who) {
    const element = document.createElement("div");
    element.className = `message ${role}`;
    const parts = ["who", "text", "note"].map((name) => {
      const part = document.createElement("span");
      part.className = name;
      element.append(part);
      return part;
    });
    parts[0].textContent = who;
    this.messages.append(element);
    this.scroll();
    return { element, text: parts[1], note: parts[2] };
  }

  setBusy(controller) {
    this.abort = controller;
    this.button.textContent = controller ? "Stop" : "Send";
    this.button.classList.toggle("stop", Boolean(controller));
    this.question.required = !controller;
  }

  scroll() {
    this.messages.scrollTop = this.messages.scrollHeight;
  }
}
