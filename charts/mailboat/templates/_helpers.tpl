{{/* The release's full name, short enough for every suffix. */}}
{{- define "mailboat.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of an object; call with (dict "root" $ "component" "operator"). */}}
{{- define "mailboat.labels" -}}
{{ include "mailboat.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels by which pods are found; they never change in the life of a release. */}}
{{- define "mailboat.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* An image's reference; call with (dict "root" $ "image" .Values.image). */}}
{{- define "mailboat.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "mailboat.serviceAccountName" -}}
{{- default (include "mailboat.fullname" .) .Values.operator.serviceAccount.name -}}
{{- end -}}

{{/* The namespaces that the operator watches, as a comma list; empty for all. */}}
{{- define "mailboat.watchNamespaces" -}}
{{- if eq .Values.operator.watch.scope "namespaces" -}}
{{- join "," (default (list .Release.Namespace) .Values.operator.watch.namespaces) -}}
{{- end -}}
{{- end -}}

{{/* Security of every container: what the pod security level "restricted" asks for, and a read-only root. */}}
{{- define "mailboat.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "mailboat.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}
