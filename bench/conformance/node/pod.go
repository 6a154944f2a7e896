package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The port on which every kind of echo-basic listens.
const echoPort = "3000"

// A pod is a process in a network namespace.
type pod struct {
	process    *exec.Cmd
	address    string
	isEcho     bool
	isReported bool
}

// start starts the first container of a pod.
func (n *node) start(ctx context.Context, object *corev1.Pod, number int) (*pod, error) {
	if len(object.Spec.Containers) == 0 {
		return nil, fmt.Errorf("no containers")
	}
	container := &object.Spec.Containers[0]
	folder := filepath.Join(n.folder, string(object.UID))
	mounts, err := n.volumes(ctx, object, container, folder)
	if err != nil {
		return nil, err
	}
	it := &pod{address: fmt.Sprintf("10.244.%d.%d", number/250, number%250+1)}
	it.isEcho = strings.Contains(container.Image, "/echo-basic")
	if it.isEcho {
		it.process = exec.Command(n.echo)
	} else {
		// There is no such program here. No test that is run sends a request to it.
		it.process = exec.Command("sleep", "infinity")
	}
	it.process.Env = environment(object, container, mounts)
	output, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		return nil, err
	}
	defer output.Close()
	it.process.Stdout, it.process.Stderr = output, output
	it.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := it.process.Start(); err != nil {
		return nil, err
	}
	if err := connect(it.process.Process.Pid, number, it.address); err != nil {
		it.stop()
		return nil, err
	}
	return it, nil
}

// stop ends the process; its network namespace ends with it.
func (it *pod) stop() {
	_ = it.process.Process.Kill()
	_ = it.process.Wait()
}

// isReady tells whether connections are accepted.
func (it *pod) isReady() bool {
	if !it.isEcho {
		return true
	}
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(it.address, echoPort), 200*time.Millisecond)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// status is that of a pod whose containers are ready.
func (it *pod) status(object *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		HostIP:    hostAddress,
		PodIP:     it.address,
		PodIPs:    []corev1.PodIP{{IP: it.address}},
		StartTime: &now,
	}
	for _, name := range []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
	} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: name, Status: corev1.ConditionTrue, LastTransitionTime: now,
		})
	}
	for _, container := range object.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

// volumes writes the Secrets and ConfigMaps that a container mounts. It returns the folder of each mount path.
func (n *node) volumes(
	ctx context.Context, object *corev1.Pod, container *corev1.Container, folder string,
) (map[string]string, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	mounts := map[string]string{}
	for _, mount := range container.VolumeMounts {
		for _, volume := range object.Spec.Volumes {
			if volume.Name != mount.Name {
				continue
			}
			files, err := n.files(ctx, object.Namespace, &volume)
			if err != nil {
				return nil, err
			}
			target := filepath.Join(folder, volume.Name)
			if err := os.MkdirAll(target, 0o700); err != nil {
				return nil, err
			}
			for name, content := range files {
				if err := os.WriteFile(filepath.Join(target, filepath.Base(name)), content, 0o600); err != nil {
					return nil, err
				}
			}
			mounts[mount.MountPath] = target
		}
	}
	return mounts, nil
}

func (n *node) files(ctx context.Context, namespace string, volume *corev1.Volume) (map[string][]byte, error) {
	files := map[string][]byte{}
	var items []corev1.KeyToPath
	switch {
	case volume.Secret != nil:
		secret, err := n.client.CoreV1().Secrets(namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		files, items = secret.Data, volume.Secret.Items
	case volume.ConfigMap != nil:
		config, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for name, text := range config.Data {
			files[name] = []byte(text)
		}
		items = volume.ConfigMap.Items
	}
	if len(items) == 0 {
		return files, nil
	}
	chosen := map[string][]byte{}
	for _, item := range items {
		chosen[item.Path] = files[item.Key]
	}
	return chosen, nil
}

// environment is that of a container. Nothing is mounted: values that begin with a mount path get its folder instead.
func environment(object *corev1.Pod, container *corev1.Container, mounts map[string]string) []string {
	fields := map[string]string{"metadata.name": object.Name, "metadata.namespace": object.Namespace}
	list := []string{"PATH=" + os.Getenv("PATH")}
	for _, variable := range container.Env {
		value := variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
			value = fields[variable.ValueFrom.FieldRef.FieldPath]
		}
		for path, folder := range mounts {
			if rest, is := strings.CutPrefix(value, path+"/"); is {
				value = filepath.Join(folder, rest)
			}
		}
		list = append(list, variable.Name+"="+value)
	}
	return list
}
