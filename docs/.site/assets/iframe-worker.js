// Browsers start no worker for a page that is opened from a folder, so there the script of the search runs in a hidden frame.
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.importScripts = (...scripts) =>
        scripts.reduce(
          (before, script) =>
            before.then(
              () =>
                new Promise((resolve, reject) => {
                  const element = inner.document.createElement("script");
                  Object.assign(element, { src: script, onload: resolve, onerror: reject });
                  inner.document.body.append(element);
                }),
            ),
          Promise.resolve(),
        );
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = inner.importScripts(url);
    }
    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.ready = this.ready.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  }
  window.Worker = window.IFrameWorker = FrameWorker;
}
