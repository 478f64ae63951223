{{/* A job's values over the defaults, as YAML; call with (dict "root" $ "job" $job). */}}
{{- define "mailboat.sparkJob" -}}
{{- toYaml (mergeOverwrite (.root.Files.Get "files/spark-job-defaults.yaml" | fromYaml) (deepCopy .job)) -}}
{{- end -}}

{{- define "mailboat.sparkJobName" -}}
{{- $name := printf "%s-%s" .root.Release.Name .job.name -}}
{{- /* Spark and Kubernetes append to it. A name that is cut ends with a digest: the rest may be another job's too. */ -}}
{{- if gt (len $name) 50 -}}
{{- printf "%s-%s" ($name | trunc 41 | trimSuffix "-" | trimSuffix ".") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* Labels of a job's objects; with "more", those of its pods. */}}
{{- define "mailboat.sparkJobLabels" -}}
{{- $more := merge (dict "mailboat.dev/spark-job" .job.name) (default dict .more) -}}
{{- include "mailboat.labels" (dict "root" .root "component" "spark-job" "more" $more) -}}
{{- end -}}

{{- define "mailboat.sparkJobClaim" -}}
{{- default (include "mailboat.sparkJobName" .) .job.output.claimName -}}
{{- end -}}

{{/* What a job shows and whom it trusts, in the driver and in executors alike. */}}
{{- define "mailboat.sparkJobSecretMounts" -}}
{{- if .job.userSecretName }}
- name: user
  mountPath: /etc/mailboat-user
  readOnly: true
{{- end }}
{{- if and .job.tls.enabled .job.tls.caSecretName }}
- name: ca
  mountPath: /etc/mailboat-ca
  readOnly: true
{{- end }}
{{- end -}}

{{- define "mailboat.sparkJobSecretVolumes" -}}
{{- if .job.userSecretName }}
- name: user
  secret:
    secretName: {{ .job.userSecretName | quote }}
    defaultMode: 0440
    items:
      - key: secretKey
        path: secretKey
{{- end }}
{{- if and .job.tls.enabled .job.tls.caSecretName }}
- name: ca
  secret:
    secretName: {{ .job.tls.caSecretName | quote }}
    defaultMode: 0440
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- end -}}

{{/* The pod of a job's driver; call with (dict "root" $ "job" $completeJob "restartPolicy" "Always"). */}}
{{- define "mailboat.sparkJobPod" -}}
{{- $job := .job }}
{{- $kubernetes := eq $job.mode "kubernetes" }}
metadata:
  labels:
    {{- include "mailboat.sparkJobLabels" (merge (dict "more" $job.podLabels) .) | nindent 4 }}
  annotations:
    checksum/executor: {{ include "mailboat.executorTemplate" . | sha256sum | quote }}
    {{- with $job.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "mailboat.sparkJobName" . | quote }}
  automountServiceAccountToken: {{ $kubernetes }}
  enableServiceLinks: false
  restartPolicy: {{ .restartPolicy }}
  terminationGracePeriodSeconds: {{ add $job.graceSeconds 10 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "mailboat.podSecurityContext" . | nindent 4 }}
  containers:
    - name: job
      image: {{ include "mailboat.image" (dict "root" .root "image" .root.Values.sparkImage) | quote }}
      imagePullPolicy: {{ .root.Values.sparkImage.pullPolicy | quote }}
      args:
        - job
        - {{ printf "--name=%v" $job.name | quote }}
        - {{ printf "--namesrv=%v" (join ";" $job.nameServers) | quote }}
        - {{ printf "--topics=%v" (join "," $job.topics) | quote }}
        - {{ printf "--group=%v" $job.group | quote }}
        - {{ printf "--output=/data/%v" $job.output.path | quote }}
        - {{ printf "--starting-offsets=%v" $job.startingOffsets | quote }}
        - {{ printf "--max-offsets-per-trigger=%v" (int64 $job.maxOffsetsPerTrigger) | quote }}
        - {{ printf "--fail-on-data-loss=%v" $job.failOnDataLoss | quote }}
        - {{ printf "--driver-memory=%v" $job.driver.memory | quote }}
        - --work-dir=/tmp
        - --metrics-port=8091
        - {{ printf "--liveness-timeout=%vs" $job.livenessTimeoutSeconds | quote }}
        - {{ printf "--tags=%v" $job.tags | quote }}
        - {{ printf "--compression=%v" $job.compression | quote }}
        - {{ printf "--partition-by=%v" (join "," $job.partitionBy) | quote }}
        {{- if $job.userSecretName }}
        - --access-key=$(ACCESS_KEY)
        - --secret-key-file=/etc/mailboat-user/secretKey
        {{- end }}
        {{- if $job.tls.enabled }}
        - --tls=true
        - {{ printf "--tls-check=%v" $job.tls.check | quote }}
        {{- if $job.tls.caSecretName }}
        - --tls-trust=/etc/mailboat-ca/ca.crt
        {{- end }}
        {{- end }}
        - {{ printf "--stop-timeout=%vs" $job.graceSeconds | quote }}
        {{- if $job.schedule }}
        - --mode=available-now
        {{- else }}
        - --mode=streaming
        - {{ printf "--trigger=%vs" (regexReplaceAll "\\.?0+$" (printf "%f" (float64 $job.triggerSeconds)) "") | quote }}
        {{- end }}
        {{- if $kubernetes }}
        - --master=k8s://https://kubernetes.default.svc
        - --namespace=$(POD_NAMESPACE)
        - {{ printf "--instance=%v" .root.Release.Name | quote }}
        - --pod-name=$(POD_NAME)
        - --pod-ip=$(POD_IP)
        - {{ printf "--image=%v" (include "mailboat.image" (dict "root" .root "image" .root.Values.sparkImage)) | quote }}
        - {{ printf "--image-pull-policy=%v" .root.Values.sparkImage.pullPolicy | quote }}
        - {{ printf "--executors=%v" $job.executors.instances | quote }}
        - {{ printf "--executor-cores=%v" $job.executors.cores | quote }}
        - {{ printf "--executor-request-cores=%v" $job.executors.requestCores | quote }}
        - {{ printf "--executor-memory=%v" $job.executors.memory | quote }}
        - {{ printf "--executor-memory-overhead=%v" $job.executors.memoryOverhead | quote }}
        - --executor-pod-template=/etc/mailboat/executor.yaml
        {{- else }}
        - {{ printf "--master=local[%v]" $job.driver.cores | quote }}
        {{- end }}
        {{- range $key, $value := $job.sparkConf }}
        - {{ printf "--conf=%v=%v" $key $value | quote }}
        {{- end }}
      {{- if or $kubernetes $job.userSecretName }}
      env:
        {{- if $job.userSecretName }}
        - name: ACCESS_KEY
          valueFrom:
            secretKeyRef:
              name: {{ $job.userSecretName | quote }}
              key: accessKey
        {{- end }}
        {{- if $kubernetes }}
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_NAMESPACE
          valueFrom:
            fieldRef:
              fieldPath: metadata.namespace
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        {{- end }}
      {{- end }}
      ports:
        - name: metrics
          containerPort: 8091
        {{- if $kubernetes }}
        - name: driver
          containerPort: 7078
        - name: blocks
          containerPort: 7079
        {{- end }}
      # Whether the first batch is done says /readyz; that it takes long is no reason to begin anew.
      startupProbe:
        httpGet:
          path: /livez
          port: metrics
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        httpGet:
          path: /livez
          port: metrics
        periodSeconds: 20
        timeoutSeconds: 5
        failureThreshold: 3
      {{- if not $job.schedule }}
      readinessProbe:
        httpGet:
          path: /readyz
          port: metrics
        periodSeconds: 10
        timeoutSeconds: 5
      {{- end }}
      resources:
        {{- toYaml $job.driver.resources | nindent 8 }}
      securityContext:
        {{- include "mailboat.containerSecurityContext" . | nindent 8 }}
      volumeMounts:
        - name: data
          mountPath: /data
        - name: tmp
          mountPath: /tmp
        {{- with include "mailboat.sparkJobSecretMounts" . }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- if $kubernetes }}
        - name: executor
          mountPath: /etc/mailboat
          readOnly: true
        {{- end }}
  volumes:
    - name: data
      persistentVolumeClaim:
        claimName: {{ include "mailboat.sparkJobClaim" . | quote }}
    - name: tmp
      emptyDir: {}
    {{- with include "mailboat.sparkJobSecretVolumes" . }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- if $kubernetes }}
    - name: executor
      configMap:
        name: {{ include "mailboat.sparkJobName" . | quote }}
    {{- end }}
  {{- with $job.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $job.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $job.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $job.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
{{- end -}}

{{/* What Spark's executors have beside what the job itself says of them. */}}
{{- define "mailboat.executorTemplate" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "mailboat.labels" (dict "root" .root "component" "spark-executor") | nindent 4 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "mailboat.podSecurityContext" . | nindent 4 }}
  containers:
    - name: executor
      securityContext:
        {{- include "mailboat.containerSecurityContext" . | nindent 8 }}
      volumeMounts:
        - name: data
          mountPath: /data
        - name: tmp
          mountPath: /tmp
        {{- with include "mailboat.sparkJobSecretMounts" . }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    - name: data
      persistentVolumeClaim:
        claimName: {{ include "mailboat.sparkJobClaim" . | quote }}
    - name: tmp
      emptyDir: {}
    {{- with include "mailboat.sparkJobSecretVolumes" . }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- with .job.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .job.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .job.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .job.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
{{- end -}}
