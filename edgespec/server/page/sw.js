/* The service worker: keeps the page itself, so that it opens without the server; never what the API says.
 *
 * The server fills in VERSION, a hash of the files, and their list. A change of any file changes this
 * script, so browsers install it anew and drop the old copies. While the server is there its own files are
 * shown, so copies never outlive an update, nor hide whatever else may one day be served at this address.
 */

const VERSION = "{{version}}";
const FILES = new Set({{files}});
const PREFIX = "edgespec-page-";
const CACHE = PREFIX + VERSION;
const PATIENCE = 4_000; // milliseconds for a server that does not answer

self.addEventListener("install", (event) => {
  const requests = [...FILES].map((path) => new Request(path, { cache: "reload" }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(requests)).then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  const old = (name) => name.startsWith(PREFIX) && name !== CACHE;
  const cleared = caches.keys().then((names) => Promise.all(names.filter(old).map((name) => caches.delete(name))));
  event.waitUntil(cleared.then(() => self.clients.claim()));
});

self.addEventListener("fetch", (event) => {
  const { pathname, origin } = new URL(event.request.url);
  if (event.request.method === "GET" && origin === location.origin && FILES.has(pathname)) {
    event.respondWith(served(event.request, pathname));
  }
});

async function served(request, path) {
  const silence = new AbortController();
  const timer = setTimeout(() => silence.abort(), PATIENCE);
  const answer = fetch(request, { signal: silence.signal }).finally(() => clearTimeout(timer)); // then it may take its time
  const response = await answer.catch(() => null);
  if (response && response.status < 500) return response; // else a proxy may speak for a server that is not there
  return (await caches.match(path, { cacheName: CACHE })) ?? answer;
}
