// Program node plays the scheduler and the kubelet of a cluster without machines. A pod is one process in a network namespace of its
// own, with an address that is routed from the namespace of this program. When it ends, its pods end too.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	nodeName = "node"
	// How often pods are listed. The suite waits for seconds.
	interval = 250 * time.Millisecond
)

// A node has the pods that it has started.
type node struct {
	client  kubernetes.Interface
	echo    string
	folder  string
	started map[types.UID]*pod
	// The number of the last address that was given to a pod.
	last int
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	echo := flag.String("echo", "", "the program of pods with the image echo-basic")
	folder := flag.String("folder", "", "where the volumes and logs of pods are kept")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := prepareNetwork(); err != nil {
		log.Fatal(err)
	}
	n := &node{client: client, echo: *echo, folder: *folder, started: map[types.UID]*pod{}}
	if err := n.serveLogs(); err != nil {
		log.Fatal(err)
	}
	if err := n.register(ctx); err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		if err := n.sync(ctx); err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
	for _, it := range n.started {
		it.stop()
	}
}

// register adds the Node: endpoints of pods on an unknown one are left out.
func (n *node) register(ctx context.Context) error {
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Ready",
			}},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: hostAddress}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort}},
		},
	}
	created, err := n.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	created.Status = object.Status
	_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

// sync does what the current pods demand: bind, start, stop.
func (n *node) sync(ctx context.Context) error {
	list, err := n.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	present := map[types.UID]bool{}
	for i := range list.Items {
		object := &list.Items[i]
		present[object.UID] = true
		if err := n.syncPod(ctx, object); err != nil {
			log.Printf("%s/%s: %v", object.Namespace, object.Name, err)
		}
	}
	for uid, it := range n.started {
		if !present[uid] {
			it.stop()
			delete(n.started, uid)
		}
	}
	return nil
}

// stopsAt is when a pod that is deleted gets the signal to stop: after the sleep of its preStop hook.
func stopsAt(object *corev1.Pod) time.Time {
	deleted := object.DeletionTimestamp.Time
	if grace := object.DeletionGracePeriodSeconds; grace != nil {
		deleted = deleted.Add(-time.Duration(*grace) * time.Second)
	}
	hooks := object.Spec.Containers[0].Lifecycle
	if hooks == nil || hooks.PreStop == nil || hooks.PreStop.Sleep == nil {
		return deleted
	}
	return deleted.Add(time.Duration(hooks.PreStop.Sleep.Seconds) * time.Second)
}

func (n *node) syncPod(ctx context.Context, object *corev1.Pod) error {
	pods := n.client.CoreV1().Pods(object.Namespace)
	running := n.started[object.UID]
	switch {
	case object.DeletionTimestamp != nil:
		if running != nil {
			if time.Now().Before(stopsAt(object)) {
				return nil
			}
			running.stop()
			delete(n.started, object.UID)
		}
		now := int64(0)
		return pods.Delete(ctx, object.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	case object.Spec.NodeName == "":
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, Name: object.Name},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
		}, metav1.CreateOptions{})
	case running == nil:
		n.last++
		started, err := n.start(ctx, object, n.last)
		if err != nil {
			return err
		}
		n.started[object.UID] = started
	case !running.isReported && running.isReady():
		object.Status = running.status(object)
		if _, err := pods.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
			return err
		}
		running.isReported = true
	}
	return nil
}
