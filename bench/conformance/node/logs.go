package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The port of the kubelet, to which the API server forwards requests for logs.
const kubeletPort = 10250

// serveLogs serves the logs of pods, as kubelets do: each as a whole, whatever time a request asks for.
func (n *node) serveLogs() error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(hostAddress), Port: kubeletPort})
	if err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.serveLog)
	server := &http.Server{
		Handler:           routes,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}},
		ReadHeaderTimeout: 5 * time.Second,
	}
	go func() { log.Print(server.ServeTLS(listener, "", "")) }()
	return nil
}

func (n *node) serveLog(response http.ResponseWriter, request *http.Request) {
	ctx, cancel := context.WithTimeout(request.Context(), 5*time.Second)
	defer cancel()
	pods := n.client.CoreV1().Pods(request.PathValue("namespace"))
	object, err := pods.Get(ctx, request.PathValue("pod"), metav1.GetOptions{})
	if err != nil {
		http.Error(response, err.Error(), http.StatusNotFound)
		return
	}
	http.ServeFile(response, request, filepath.Join(n.folder, string(object.UID), "log"))
}

// selfSigned makes a certificate. The API server does not check it.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
