"""The application behind nginx: JSON that takes some work to make, as an API does without a cache."""

from flask import Flask, jsonify

app = Flask(__name__)


@app.get("/quotes")
def quotes():
    return jsonify([{"symbol": f"S{n:03}", "price": n * 7 % 101 / 100, "name": f"stock {n}"} for n in range(40)])
