#!/usr/bin/env python3
"""Publishes moving prices and the scores of an evening: examples/live/feed.py [URL [TOKEN]]."""

import http.client, json, random, sys, time
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
headers = {"Authorization": f"Bearer {sys.argv[2] if len(sys.argv) > 2 else 'demo'}"}
server = http.client.HTTPConnection(url.hostname, url.port or 80)


def publish(path, batch):
    server.request("POST", path, json.dumps(batch), headers)
    response = server.getresponse()
    text = response.read().decode()
    if response.status != 200:
        sys.exit(f"{response.status}: {text}")


prices = {symbol: random.uniform(5, 200) for symbol in ("sh600000", "sz000001", "hk00700", "usAAPL")}
games = {"Lakers – Celtics": [0, 0], "Bulls – Heat": [0, 0], "Warriors – Nets": [0, 0]}
while True:
    moved = random.sample(list(prices), 2)
    for symbol in moved:
        prices[symbol] *= 1 + random.gauss(0, 0.001)
    publish("/quotes", [{"channel": "quotes", "key": symbol, "data": {"symbol": symbol, "price": round(prices[symbol], 2)}} for symbol in moved])
    if random.random() < 0.1:
        game = random.choice(list(games))
        games[game][random.randrange(2)] += random.choice((1, 2, 3))
        publish("/live", [{"channel": "scores", "data": {"game": game, "score": games[game]}}])
    time.sleep(0.1)
