//go:build tools

package conformance

// The program in the pods of the suite; run.py builds it.
import _ "sigs.k8s.io/gateway-api/conformance/echo-basic"
