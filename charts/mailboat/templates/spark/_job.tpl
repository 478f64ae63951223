{{/* A job's values over the defaults, as YAML; call with (dict "root" $ "job" $job). */}}
{{- define "mailboat.sparkJob" -}}
{{- toYaml (mergeOverwrite (.root.Files.Get "files/spark-job-defaults.yaml" | fromYaml) (deepCopy .job)) -}}
{{- end -}}

{{- define "mailboat.sparkJobName" -}}
{{- printf "%s-%s" .root.Release.Name .job.name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "mailboat.sparkJobLabels" -}}
{{ include "mailboat.labels" (dict "root" .root "component" "spark-job") }}
mailboat.dev/spark-job: {{ .job.name }}
{{- end -}}

{{- define "mailboat.sparkJobClaim" -}}
{{- default (include "mailboat.sparkJobName" .) .job.output.claimName -}}
{{- end -}}

{{/* The pod of a job's driver; call with (dict "root" $ "job" $completeJob "restartPolicy" "Always"). */}}
{{- define "mailboat.sparkJobPod" -}}
{{- $job := .job }}
{{- $kubernetes := eq $job.mode "kubernetes" }}
metadata:
  labels:
    {{- include "mailboat.sparkJobLabels" . | nindent 4 }}
    {{- with $job.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/executor: {{ include "mailboat.executorTemplate" . | sha256sum }}
    {{- with $job.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "mailboat.sparkJobName" . }}
  automountServiceAccountToken: {{ $kubernetes }}
  enableServiceLinks: false
  restartPolicy: {{ .restartPolicy }}
  terminationGracePeriodSeconds: {{ add $job.graceSeconds 10 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "mailboat.podSecurityContext" . | nindent 4 }}
  containers:
    - name: job
      image: {{ include "mailboat.image" (dict "root" .root "image" .root.Values.sparkImage) }}
      imagePullPolicy: {{ .root.Values.sparkImage.pullPolicy }}
      args:
        - job
        - --name={{ $job.name }}
        - --namesrv={{ join ";" $job.nameServers }}
        - --topics={{ join "," $job.topics }}
        - --group={{ $job.group }}
        - --output=/data/{{ $job.output.path }}
        - --starting-offsets={{ $job.startingOffsets }}
        - --max-offsets-per-trigger={{ int64 $job.maxOffsetsPerTrigger }}
        - --fail-on-data-loss={{ $job.failOnDataLoss }}
        - --driver-memory={{ $job.driver.memory }}
        - --work-dir=/tmp
        - --metrics-port=8091
        - --stop-timeout={{ $job.graceSeconds }}s
        {{- if $job.schedule }}
        - --mode=available-now
        {{- else }}
        - --mode=streaming
        - --trigger={{ $job.triggerSeconds }}s
        {{- end }}
        {{- if $kubernetes }}
        - --master=k8s://https://kubernetes.default.svc
        - --namespace=$(POD_NAMESPACE)
        - --pod-name=$(POD_NAME)
        - --pod-ip=$(POD_IP)
        - --image={{ include "mailboat.image" (dict "root" .root "image" .root.Values.sparkImage) }}
        - --image-pull-policy={{ .root.Values.sparkImage.pullPolicy }}
        - --executors={{ $job.executors.instances }}
        - --executor-cores={{ $job.executors.cores }}
        - --executor-request-cores={{ $job.executors.requestCores }}
        - --executor-memory={{ $job.executors.memory }}
        - --executor-memory-overhead={{ $job.executors.memoryOverhead }}
        - --executor-pod-template=/etc/mailboat/executor.yaml
        {{- else }}
        - --master=local[{{ $job.driver.cores }}]
        {{- end }}
        {{- range $key, $value := $job.sparkConf }}
        - --conf={{ $key }}={{ $value }}
        {{- end }}
      {{- if $kubernetes }}
      env:
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
      ports:
        - name: metrics
          containerPort: 8091
        {{- if $kubernetes }}
        - name: driver
          containerPort: 7078
        - name: blocks
          containerPort: 7079
        {{- end }}
      {{- if not $job.schedule }}
      startupProbe:
        httpGet:
          path: /readyz
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
        {{- if $kubernetes }}
        - name: executor
          mountPath: /etc/mailboat
          readOnly: true
        {{- end }}
  volumes:
    - name: data
      persistentVolumeClaim:
        claimName: {{ include "mailboat.sparkJobClaim" . }}
    - name: tmp
      emptyDir: {}
    {{- if $kubernetes }}
    - name: executor
      configMap:
        name: {{ include "mailboat.sparkJobName" . }}
    {{- end }}
  {{- with $job.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $job.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
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
    - name: {{ . }}
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
  volumes:
    - name: data
      persistentVolumeClaim:
        claimName: {{ include "mailboat.sparkJobClaim" . }}
    - name: tmp
      emptyDir: {}
  {{- with .job.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .job.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
