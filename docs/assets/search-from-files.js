// Search runs in a worker. Browsers refuse workers to pages that are opened as files, so there its script runs
// in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const send = (message) => setTimeout(() => {
        const data = structuredClone(message);
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      });
      document.body.append(frame);
      this.window = frame.contentWindow;
      this.window.postMessage = send;
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      frame.contentDocument.body.append(script);
      this.terminate = () => frame.remove();
    }
    postMessage(message) {
      const data = structuredClone(message); // as between threads: neither side sees the other's changes
      if (this.waiting) this.waiting.push(data);
      else this.window.dispatchEvent(new this.window.MessageEvent("message", { data }));
    }
  };
}
