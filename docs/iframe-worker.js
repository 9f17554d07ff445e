// The site's search runs in a Worker, which browsers refuse to a page of the file system. There it runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.pending = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.start(frame.contentWindow, url), { once: true });
      document.body.append(frame);
    }

    start(inner, url) {
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.inner = inner;
        this.pending.splice(0).forEach((data) => this.postMessage(data));
      };
      inner.document.body.append(script);
    }

    postMessage(data) {
      if (!this.inner) this.pending.push(data);
      else this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }
  };
}
