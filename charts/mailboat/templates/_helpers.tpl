{{/* A name cut to 40 characters; what is left of a cut is no end of a name. */}}
{{- define "mailboat.cut" -}}
{{- regexReplaceAll "[^a-z0-9]+$" (trunc 40 .) "" -}}
{{- end -}}

{{- define "mailboat.name" -}}
{{- include "mailboat.cut" (default .Chart.Name .Values.nameOverride) -}}
{{- end -}}

{{/* The release's full name, short enough for every suffix. */}}
{{- define "mailboat.fullname" -}}
{{- $name := include "mailboat.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- include "mailboat.cut" .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- include "mailboat.cut" .Release.Name -}}
{{- else -}}
{{- include "mailboat.cut" (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}

{{/* The full name as a Service may have it: a letter first, and no dots. */}}
{{- define "mailboat.serviceName" -}}
{{- $name := include "mailboat.fullname" . | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "r%s" $name }}{{ end -}}
{{- $name -}}
{{- end -}}

{{/* Labels of an object; call with (dict "root" $ "component" "operator"), and "more" for others.
The chart's own win: pods are found by them. */}}
{{- define "mailboat.labels" -}}
{{- $version := dict "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- toYaml (merge (include "mailboat.selectorLabels" . | fromYaml) $version (default dict .more) (default dict .root.Values.commonLabels)) -}}
{{- end -}}

{{/* The labels by which pods are found; they never change in the life of a release. */}}
{{- define "mailboat.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mailboat.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end -}}

{{/* What the schema cannot say of values together: one sentence for the first that is wrong. */}}
{{- define "mailboat.check" -}}
{{- $operator := .Values.operator -}}
{{- if and $operator.watch.namespaces (ne $operator.watch.scope "namespaces") -}}
{{- fail "operator.watch.namespaces is set, but operator.watch.scope is cluster, which serves all namespaces: set operator.watch.scope=namespaces" -}}
{{- end -}}
{{- if and $operator.enabled (not $operator.serviceAccount.create) (not $operator.serviceAccount.name) -}}
{{- fail "operator.serviceAccount.create is false, so operator.serviceAccount.name must name an account that is there" -}}
{{- end -}}
{{- $names := dict -}}
{{- $objects := dict -}}
{{- if $operator.enabled -}}
{{- $fullname := include "mailboat.fullname" . -}}
{{- range list $fullname (printf "%s-leader" $fullname) (printf "%s-test" $fullname) (printf "%s-%s" $fullname .Release.Namespace) -}}
{{- $_ := set $objects . "the operator" -}}
{{- end -}}
{{- end -}}
{{- range .Values.sparkJobs -}}
{{- if hasKey $names .name -}}
{{- fail (printf "sparkJobs has two jobs of the name %s: each needs one of its own" .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- $job := include "mailboat.sparkJob" (dict "root" $ "job" .) | fromYaml -}}
{{- $object := include "mailboat.sparkJobName" (dict "root" $ "job" .) -}}
{{- range $name := list $object (printf "%s-executors" $object) -}}
{{- with get $objects $name -}}
{{- fail (printf "sparkJobs: an object of %s would be called %s, as one of %s is: rename the job" $job.name $name .) -}}
{{- end -}}
{{- $_ := set $objects $name $job.name -}}
{{- end -}}
{{- if and (eq $job.mode "kubernetes") (not $job.output.claimName) (eq $job.output.accessMode "ReadWriteOncePod") -}}
{{- fail (printf "sparkJobs: the volume of %s is ReadWriteOncePod, which its executors cannot mount beside the driver: use ReadWriteMany, or ReadWriteOnce on one node" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where the sample lives: a namespace that is watched. */}}
{{- define "mailboat.sampleNamespace" -}}
{{- $watched := splitList "," (include "mailboat.watchNamespaces" .) -}}
{{- if or (eq .Values.operator.watch.scope "cluster") (has .Release.Namespace $watched) -}}
{{- .Release.Namespace -}}
{{- else -}}
{{- first $watched -}}
{{- end -}}
{{- end -}}

{{/* Whether the operator asks the kubelets for the use of volumes whose broker is down. */}}
{{- define "mailboat.kubeletStats" -}}
{{- if and (ne (toString .Values.operator.rbac.kubeletStats) "false") (eq .Values.operator.watch.scope "cluster") }}true{{ else }}false{{ end -}}
{{- end -}}

{{/* An image's reference; call with (dict "root" $ "image" .Values.image). */}}
{{- define "mailboat.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The network policies' values over their defaults, as YAML. */}}
{{- define "mailboat.networkPolicy" -}}
{{- $monitoring := dict "matchLabels" (dict "kubernetes.io/metadata.name" "monitoring") -}}
{{- $prometheus := dict "matchLabels" (dict "app.kubernetes.io/name" "prometheus") -}}
{{- $peers := list (dict "namespaceSelector" $monitoring "podSelector" $prometheus) -}}
{{- toYaml (mergeOverwrite (dict "enabled" true "prometheus" $peers "httpFrom" list) (deepCopy (default dict .Values.networkPolicy))) -}}
{{- end -}}

{{/* The rule that lets Prometheus read metrics; call with (dict "root" $ "port" 8090). Empty if nobody is let in. */}}
{{- define "mailboat.metricsIngress" -}}
{{- $policy := include "mailboat.networkPolicy" .root | fromYaml -}}
{{- with concat (default list $policy.prometheus) (default list $policy.httpFrom) -}}
- from:
    {{- toYaml . | nindent 4 }}
  ports:
    - port: {{ $.port }}
      protocol: TCP
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
