package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// The address of this program's namespace, as pods see it.
const hostAddress = "10.244.255.254"

func prepareNetwork() error {
	return ip("addr", "replace", hostAddress+"/32", "dev", "lo")
}

// connect gives the network namespace of a process an address, and routes it from here.
func connect(pid, number int, address string) error {
	outer := fmt.Sprintf("pod%d", number)
	inside := func(arguments ...string) error {
		return run("nsenter", append([]string{"--net", "--target", strconv.Itoa(pid), "ip"}, arguments...)...)
	}
	for _, step := range []func() error{
		func() error {
			return ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid))
		},
		func() error { return ip("link", "set", outer, "up") },
		func() error { return ip("route", "add", address+"/32", "dev", outer, "src", hostAddress) },
		func() error { return inside("link", "set", "lo", "up") },
		func() error { return inside("link", "set", "eth0", "up") },
		func() error { return inside("addr", "add", address+"/32", "dev", "eth0") },
		func() error { return inside("route", "add", hostAddress+"/32", "dev", "eth0") },
		func() error { return inside("route", "add", "default", "via", hostAddress) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func ip(arguments ...string) error {
	return run("ip", arguments...)
}

func run(program string, arguments ...string) error {
	output, err := exec.Command(program, arguments...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(arguments, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}
