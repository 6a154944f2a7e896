// fasthttp with one CPU: GET /json as TechEmpower defines it.
package main

import (
	"encoding/json"
	"log"
	"os"
	"runtime"

	"github.com/valyala/fasthttp"
)

type hello struct {
	Message string `json:"message"`
}

func main() {
	runtime.GOMAXPROCS(1)
	server := &fasthttp.Server{Name: "fasthttp", Handler: func(c *fasthttp.RequestCtx) {
		c.SetContentType("application/json")
		body, _ := json.Marshal(hello{"Hello, World!"})
		c.SetBody(body)
	}}
	log.Fatal(server.ListenAndServe(os.Args[1]))
}
