// Package conformance runs the conformance suite of the Gateway API; its flags say how.
package conformance

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestGatewayAPI(t *testing.T) {
	conformance.RunConformance(t)
}
