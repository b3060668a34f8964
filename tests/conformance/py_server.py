# SPDX-License-Identifier: BSD-2-Clause
"""socketserver and http.server with threads, and http.client with keep-alive, against each other."""
import http.client
import http.server
import socketserver
import threading

import conf_py as conf

conf.start()


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True


def echo_client(port, n):
    import socket
    with socket.create_connection((conf.ADDR4, port)) as c, c.makefile("rwb") as f:
        for i in range(n):
            f.write(b"line %d\n" % i)
            f.flush()
            conf.check(f.readline(), b"LINE %d\n" % i)


with Server((conf.ADDR4, 0), Echo) as srv:
    threading.Thread(target=srv.serve_forever, daemon=True).start()
    ts = [threading.Thread(target=echo_client, args=(srv.server_address[1], 100)) for _ in range(8)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    srv.shutdown()

with http.server.ThreadingHTTPServer((conf.ADDR4, 0), Http) as srv:
    threading.Thread(target=srv.serve_forever, daemon=True).start()
    h = http.client.HTTPConnection(conf.ADDR4, srv.server_address[1], timeout=10)
    for size in (0, 1, 1000, 300000, 7):
        body = bytes(i & 255 for i in range(size))
        h.request("POST", "/", body)
        r = h.getresponse()
        conf.check(r.status, 200)
        conf.check(r.read(), body[::-1])
    h.close()
    srv.shutdown()

conf.end()
