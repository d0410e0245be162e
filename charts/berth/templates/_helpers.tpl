{{/* Fails unless the release is in the namespace that the admission policies name. */}}
{{- define "berth.check" -}}
{{- if ne .Release.Namespace "berth-system" -}}
{{- fail (printf "Berth must be installed into the namespace berth-system, because its admission policies name it, not into %s: add --namespace berth-system" .Release.Namespace) -}}
{{- end -}}
{{- end -}}

{{/* The reference of an image: a list of the chart's root and the values of the image. */}}
{{- define "berth.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $tag := default $root.Chart.AppVersion $image.tag -}}
{{- $digest := empty $image.digest | ternary "" (printf "@%s" $image.digest) -}}
{{- printf "%s/%s:%s%s" $root.Values.images.registry $image.name $tag $digest -}}
{{- end -}}

{{/* How pods get the images. */}}
{{- define "berth.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ quote . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Directory of the credentials of k3s and RKE2. */}}
{{- define "berth.rancher" -}}
{{- printf "/var/lib/rancher/%s/agent" .Values.distribution -}}
{{- end -}}

{{/* The kubelet's kubeconfig on the host. */}}
{{- define "berth.kubeconfig" -}}
{{- if eq .Values.distribution "kubeadm" -}}
/etc/kubernetes/kubelet.conf
{{- else if or (eq .Values.distribution "k3s") (eq .Values.distribution "rke2") -}}
{{ include "berth.rancher" . }}/kubelet.kubeconfig
{{- else -}}
/var/lib/kubelet/kubeconfig
{{- end -}}
{{- end -}}

{{/* The files of the host that the agent needs to act as its node: a list of name, path and type. */}}
{{- define "berth.kubeletFiles" -}}
{{- if .Values.impersonation -}}
[]
{{- else if eq .Values.distribution "kubeadm" -}}
- {name: kubeconfig, path: {{ include "berth.kubeconfig" . }}, type: File}
- {name: kubelet-pki, path: /var/lib/kubelet/pki, type: DirectoryOrCreate}
{{- else if eq .Values.distribution "openshift" -}}
- {name: kubelet-kubeconfig, path: {{ include "berth.kubeconfig" . }}, type: File}
- {name: kubelet-pki, path: /var/lib/kubelet/pki, type: DirectoryOrCreate}
{{- else if eq .Values.distribution "eks" -}}
- {name: kubelet-kubeconfig, path: {{ include "berth.kubeconfig" . }}, type: File}
- {name: server-ca, path: /etc/kubernetes/pki/ca.crt, type: File}
{{- else -}}
- {name: kubelet-kubeconfig, path: {{ include "berth.kubeconfig" . }}, type: File}
- {name: kubelet-certificate, path: {{ include "berth.rancher" . }}/client-kubelet.crt, type: File}
- {name: kubelet-key, path: {{ include "berth.rancher" . }}/client-kubelet.key, type: File}
- {name: server-ca, path: {{ include "berth.rancher" . }}/server-ca.crt, type: File}
{{- end -}}
{{- end -}}
